"""The project's own measurements: beside other queues, of deep spaces and in Spark. Not collected by pytest.

cd tests && python -m bench.compare --peer postgres --server
cd tests && python -m bench.ledger --directory DIR
cd tests && python -m bench.opening --messages 1000000
cd tests && python -m bench.spark_bench --messages 100000
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples" / "postgres"))  # which has a PostgreSQL to compare with
