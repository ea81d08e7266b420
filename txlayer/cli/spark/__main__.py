"""`txlayer-spark` as the file that `spark-submit` is given; `txlayer-spark program` prints where it is."""

from __future__ import annotations

from txlayer.cli.spark.main import main

if __name__ == "__main__":
    main()
