"""What a query writes at once: many branches, one decision."""
