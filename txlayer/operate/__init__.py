"""What an operator can know and do: functions that take a connection and return values. The command line is one face of it."""
