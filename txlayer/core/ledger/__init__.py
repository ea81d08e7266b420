"""What the coordinator knows of one partition's transactions, and decides: pure rules."""
