"""``xaqueue ingest``: queues flow into a directory of Parquet files."""
