"""Everything that reaches outside the process; no rule of the protocol."""
