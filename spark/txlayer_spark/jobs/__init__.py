"""One job per file: arguments → read → transforms → write. Column logic that a job does not have alone is outside."""
