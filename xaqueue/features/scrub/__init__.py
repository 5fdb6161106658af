"""Every message is read now and then while the space is open."""
