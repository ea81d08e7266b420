"""A reference model of the protocol, written from its page alone, to hold every other judge against."""
