from distkeras_grid.evaluation.classification import ClassCounts, evaluate_tallies

TALLIES = [
    ClassCounts((source,), true, named, votes, float(votes))
    for source, true, named, votes in [
        ("a", 0, 0, 1200),
        ("a", 0, 1, 30),
        ("b", 0, 0, 3),
        ("c", 1, 1, 5),
        ("d", 1, 0, 5),
    ]
]


def test_all_tables_are_there_and_in_line():
    text = str(evaluate_tallies(TALLIES, ["source"], classes=("dark", "light", "gray")))
    assert text.startswith("accuracy 0.9718 on 1243 rows\n")
    parts = text.split("\n\n")
    assert len(parts) == 6
    levels = parts[1].splitlines()
    assert [line.split()[0] for line in levels] == ["by", "row", "source"]
    assert levels[1].split()[1] == "1,243"
    assert parts[2].splitlines()[3].startswith("gray")
    assert "not defined" in parts[2].splitlines()[3]
    confusion = parts[4].splitlines()
    assert len({len(line) for line in confusion}) == 1
    assert confusion[1].split() == ["dark", "1203", "30", "0"]
    assert "from how 4 of column 'source' differ" in parts[5]


def test_an_interval_that_tells_nothing_is_explained():
    text = str(evaluate_tallies(TALLIES[2:4], ["source"]))
    assert "(no interval)" in text
    assert "all say the same" in text
    without = [ClassCounts((), each.true, each.named, each.votes, each.score) for each in TALLIES]
    assert "as if they were independent" in str(evaluate_tallies(without, ()))
