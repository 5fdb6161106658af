"""A delivery that failed is counted, the message is tried again, and goes elsewhere at last."""
