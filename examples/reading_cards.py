"""Result cards as a table, with duckdb, else with pandas, else with the csv module.

python examples/reading_cards.py [FOLDER]
"""

import csv
import importlib.util
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

QUERY = """
SELECT learner, "column", round(100 * avg(accuracy), 2) AS accuracy, count(*) AS cards
FROM read_csv_auto('{file}') GROUP BY learner, "column" ORDER BY learner, "column"
"""


def exported(folder):
    """Let the command line write a row for every card: from here on nothing needs cfsl."""
    command = [sys.executable, "-m", "cfsl", "results", "export", str(folder)]
    command += ["--format", "csv", "--out", "cards.csv", "--overwrite"]
    subprocess.run(command, check=True, capture_output=True)
    return Path("cards.csv")


def with_duckdb(path):
    import duckdb

    return duckdb.sql(QUERY.format(file=path)).fetchall()


def with_pandas(path):
    import pandas

    table = pandas.read_csv(path).groupby(["learner", "column"])["accuracy"].agg(["mean", "size"])
    return [(*key, round(100 * row["mean"], 2), int(row["size"])) for key, row in table.iterrows()]


def with_csv(path):
    found = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["learner"], row["column"]].append(float(row["accuracy"]))

    means = {key: sum(accuracies) / len(accuracies) for key, accuracies in found.items()}
    return [(*key, round(100 * means[key], 2), len(found[key])) for key in sorted(found)]


def main(folder="results"):
    path = exported(folder)
    readers = {"duckdb": with_duckdb, "pandas": with_pandas, "csv": with_csv}
    reader = next(name for name in readers if importlib.util.find_spec(name))
    if reader == "csv":
        print("neither duckdb nor pandas is installed: read with Python's csv module")

    for learner, column, accuracy, cards in readers[reader](path):
        print(f"{learner:<22}{column:<6}{accuracy:6.2f} %   {cards} card(s)")


if __name__ == "__main__":
    main(*sys.argv[1:2])
