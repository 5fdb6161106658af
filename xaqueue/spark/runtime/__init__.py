"""What a Spark job needs around it: a session, a Java, and a server of the space where nobody has it open."""
