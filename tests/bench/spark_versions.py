"""What each version of Spark does, in an environment of its own: python -m bench.spark_versions DIRECTORY [VERSION...]

The environments are made in the directory and stay there; what was found goes to ``man/guide/figures``, from where the
guide's page has it. A version that xaqueue refuses says with which sentence; of another one each feature of
``tests/spark/test_spark_streaming.py`` is tried.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "man" / "guide" / "figures" / "spark_versions.json"
VERSIONS = ("4.0.2", "4.1.1", "4.2.0", "4.3.0")
TESTS = "tests/spark/test_spark_streaming.py"
PROBE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.read.format("xaqueue").option("path", "/nowhere").option("queue", "orders").load().count()
"""
SENTENCE = re.compile(r"ImportError: (the format xaqueue cannot be used here: .*)")


def made(directory: Path, version: str) -> Path:
    """The Python of an environment with this Spark, and with what xaqueue and its tests want beside."""
    home = directory / f"spark-{version}"
    python = home / "bin" / "python"
    if not (home / "done").exists():
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        wanted = [*project["dependencies"], *extras["server"], *extras["spark"], *extras["java"], *extras["test-unit"]]
        others = [one for one in wanted if not one.startswith(("xaqueue", "pyspark"))]
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pip = [str(python), "-m", "pip", "install", "-q"]
        spark = f"pyspark[connect{',pipelines' if version >= '4.1' else ''}]=={version}"
        subprocess.run([*pip, spark, *others], check=True)
        subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)
        (home / "done").touch()
    return python


def tried(python: Path, report: Path) -> dict[str, str]:
    """What became of each feature, or under ``refused`` the sentence."""
    env = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}", "PYSPARK_PYTHON": str(python)}
    said = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False, cwd=ROOT, env=env).stderr
    if refused := SENTENCE.search(said):
        return {"refused": refused[1]}
    report.unlink(missing_ok=True)
    words = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", f"--junitxml={report}", TESTS]
    subprocess.run(words, check=False, cwd=ROOT, env=env)
    cases = ET.parse(report).getroot().iter("testcase")
    return {re.sub(r".*\[(.*)\]", r"\1", case.get("name", "")): _outcome(case) for case in cases}


def _outcome(case: ET.Element) -> str:
    wrong = next((one for one in case if one.tag in ("failure", "error", "skipped")), None)
    return "works" if wrong is None else f"{wrong.tag}: {wrong.get('message', '')[:200]}"


def main(directory: str, *versions: str) -> None:
    for version in versions or VERSIONS:
        python = made(Path(directory), version)
        result = tried(python, Path(directory) / f"{version}.xml")
        found = json.loads(FOUND.read_text()) if FOUND.exists() else {}  # another run may have added to it
        found[version] = result
        FOUND.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
