"""One job per file: arguments → read → transforms → write. Never: column logic."""
