"""Other people's frameworks, over the public names of xaqueue only. Each wants its own extra."""
