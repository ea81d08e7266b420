"""`txlayer-spark`: the jobs of `txlayer_spark` from a command line; jars, Java and settings come from here."""
