import json

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, DataError, EmptyDataError, LabelError
from distkeras_grid.evaluation.classification import ClassCounts, evaluate_tallies

BY = ("source", "group")


def said(units, true, scores):
    """Count rows of one unit; `scores` of shape (rows, classes)."""
    scores = np.asarray(scores)
    votes = np.bincount(scores.argmax(axis=1), minlength=scores.shape[1])
    return [
        ClassCounts(units, true, number, int(n), float(score))
        for number, (n, score) in enumerate(zip(votes, scores.sum(axis=0), strict=True))
    ]


# Two of three tiles vote for class 1, but their mean is for class 0.
TORN = [[0.45, 0.55], [0.45, 0.55], [0.9, 0.1]]
TALLIES = [
    *said(("a", "s1"), 0, TORN),
    *said(("b", "s1"), 0, [[0.8, 0.2], [0.7, 0.3]]),
    *said(("c", "s2"), 1, [[0.1, 0.9], [0.6, 0.4], [0.2, 0.8], [0.2, 0.8]]),
    *said(("d", None), 1, [[0.3, 0.7]]),
]


def test_rows_and_what_they_belong_to_have_figures_of_their_own():
    found = evaluate_tallies(TALLIES, BY, classes=("dark", "light"))
    assert [(level.name, level.count) for level in found.levels] == [
        ("row", 10),
        ("source", 4),
        ("group", 3),
    ]
    assert found.accuracy == found.level("row").accuracy.value == pytest.approx(0.7)
    assert found.level("row").confusion.tolist() == [[3, 2], [1, 4]]
    assert found.level("source").accuracy.value == 1
    assert found.level("group").confusion.tolist() == [[1, 0], [0, 2]]
    dark, light = found.level("row").classes
    assert (dark.name, dark.count, light.name, light.count) == ("dark", 5, "light", 5)
    assert dark.precision == pytest.approx(3 / 4)
    assert light.recall == pytest.approx(4 / 5)
    assert (found.cluster, found.clusters) == ("group", 3)
    (note,) = found.notes
    assert note.startswith("All rows of class 'dark' are in one group:")


def test_the_figures_of_a_confusion_matrix():
    """Checked with scikit-learn 1.7: balanced_accuracy_score, precision_recall_fscore_support."""
    matrix = [[3, 1, 1], [1, 2, 0], [0, 0, 2], [0, 0, 0]]
    tallies = [
        ClassCounts((), true, named, votes, float(votes))
        for true, row in enumerate(matrix)
        for named, votes in enumerate(row)
        if votes
    ]
    (level,) = evaluate_tallies(tallies, (), classes="abcd").levels
    assert level.accuracy.value == pytest.approx(0.7)
    # A class that does not occur has no recall, and does not count in the mean.
    assert level.balanced == pytest.approx((0.6 + 2 / 3 + 1) / 3)
    found = [(each.precision, each.recall, each.f1) for each in level.classes]
    expected = [(0.75, 0.6, 2 / 3), (2 / 3, 2 / 3, 2 / 3), (2 / 3, 1.0, 0.8)]
    assert found[:3] == [pytest.approx(each) for each in expected]
    assert found[3] == (None, None, None)


def test_the_first_of_equals_wins():
    equal = said(("a",), 0, [[0.6, 0.4], [0.4, 0.6]])
    assert evaluate_tallies(equal, ["source"]).level("source").accuracy.value == 1


def test_what_has_no_group_is_one_of_its_own():
    """Also where its name is that of a group."""
    tallies = [*said(("a", "x"), 0, [[1, 0]]), *said(("x", None), 1, [[0, 1]])]
    assert evaluate_tallies(tallies, BY).level("group").count == 2


def test_a_unit_of_several_classes_has_no_class():
    tallies = [*said(("a", "s"), 0, [[1, 0]]), *said(("b", "s"), 1, [[0, 1]])]
    found = evaluate_tallies(tallies, BY)
    assert [level.name for level in found.levels] == ["row", "source"]
    (note, *_) = [note for note in found.notes if "several classes" in note]
    assert "'s'" in note
    # They are the clusters all the same.
    assert (found.cluster, found.clusters) == ("group", 1)
    assert found.level("row").accuracy.low is None
    with pytest.raises(ConfigurationError, match="row, source"):
        found.level("group")


def test_a_mixed_unit_takes_no_figures_from_the_others_and_varies_as_they_do():
    """Three specimens of one class, and one large one of two, of which little is right."""
    pure = [
        tally
        for number, right in enumerate((9, 8, 10))
        for tally in said(
            (f"{number}", f"s{number}"), 0, [[1, 0]] * right + [[0, 1]] * (10 - right)
        )
    ]
    mixed = [
        *said(("x", "m"), 0, [[0, 1]] * 30),
        *said(("y", "m"), 1, [[0, 1]] * 5 + [[1, 0]] * 25),
    ]
    found = evaluate_tallies(pure + mixed, BY)
    assert found.level("group").count == 3
    accuracy = found.level("row").accuracy
    assert accuracy.value == pytest.approx(32 / 90)
    # What is right is 0.9 or 0.08: four specimens do not tell much.
    assert accuracy.low < 0.1
    assert accuracy.high > 0.75
    assert any("'m': they do not count in figures by group" in note for note in found.notes)
    assert any("class '1' are in one group" in note for note in found.notes)


def test_the_most_frequent_class_stands_beside_the_accuracy():
    tallies = [*said(("a", "s"), 0, [[1, 0]] * 3), *said(("b", "t"), 1, [[1, 0]] * 5)]
    found = evaluate_tallies(tallies, BY, classes=("dark", "light"))
    assert str(found.levels[0].most_frequent) == "0.625 (light)"
    assert found.to_json()["levels"][0]["most_frequent"] == {"name": "light", "share": 0.625}
    assert "0.625 (light)" in str(found)


def test_without_units_rows_are_independent():
    tallies = [ClassCounts((), each.true, each.named, each.votes, each.score) for each in TALLIES]
    found = evaluate_tallies(tallies, ())
    assert (found.cluster, found.clusters) == ("row", 10)
    (level,) = found.levels
    assert level.confusion.tolist() == [[3, 2], [1, 4]]
    assert level.accuracy.low < 0.7 < level.accuracy.high
    assert [each.name for each in level.classes] == ["0", "1"]


def test_intervals_do_not_depend_on_the_order_of_the_tallies():
    random = np.random.default_rng(0)
    tallies = [
        tally
        for number in range(12)
        for tally in said((f"{number}",), number % 2, random.uniform(size=(9, 2)))
    ]
    found = evaluate_tallies(tallies, ["source"])
    assert found == evaluate_tallies(tallies[::-1], ["source"])
    assert found.accuracy != found.level("row").accuracy.low


def test_all_that_was_found_is_json():
    found = evaluate_tallies(TALLIES, BY).to_json()
    assert json.loads(json.dumps(found)) == found
    assert (found["accuracy"], found["rows"], found["confusion"]) == (0.7, 10, [[3, 2], [1, 4]])
    assert found["intervals"]["clusters"] == 3
    assert found["levels"][1]["classes"][0]["recall"] == 1


@pytest.mark.parametrize(
    ("tallies", "more", "error"),
    [
        ([], {}, EmptyDataError),
        ([ClassCounts(("a", "g"), 0, -1, 3, 0.0)], {}, DataError),
        ([ClassCounts(("a", "g"), 0, 2, 3, 0.0)], {"classes": ("one", "two")}, LabelError),
        ([ClassCounts(("a", "g"), -2, 0, 3, 0.0)], {}, LabelError),
        ([ClassCounts((None, None), 0, 0, 3, 0.0)], {}, DataError),
        (said(("a", "g"), 0, [[1]]) + said(("a", "h"), 0, [[1]]), {}, DataError),
    ],
)
def test_what_cannot_be_evaluated_is_refused(tallies, more, error):
    with pytest.raises(error):
        evaluate_tallies(tallies, BY, **more)
