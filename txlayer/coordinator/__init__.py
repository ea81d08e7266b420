"""The coordinator: reads half and op, forwards what was committed, exactly once."""
