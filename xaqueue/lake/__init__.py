"""Queues as tables: for DuckDB, Polars, pandas and whatever else reads Arrow, without Spark.

PyArrow is imported in this folder and in Spark's, and nowhere else in xaqueue.
"""
