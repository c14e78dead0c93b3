import pytest

from data_prep.splits.labels import Annotation, annotate, class_names, parse_table
from distkeras_grid.errors import ConfigurationError, LabelError


def no_file(path):
    raise AssertionError(f"{path} is not to be read")


def test_label_from_the_file_name_and_group_from_the_path():
    sources = ["s1/065_lentils.jpg", "s1/066_maize.jpg", "s2/001_maize.jpg"]
    found = annotate(sources, r"regex:_(?P<label>[a-z]+)\.", no_file, group=r"^(?P<group>s\d)/")
    assert list(found.values()) == [
        Annotation("lentils", "s1"),
        Annotation("maize", "s1"),
        Annotation("maize", "s2"),
    ]
    with pytest.raises(LabelError, match=r"no label in '067\.jpg'"):
        annotate(["s1/067.jpg"], r"regex:_(?P<label>[a-z]+)\.", no_file)


def test_table_by_path_and_by_file_name():
    tables = {"l.csv": "\ufefffile,label,split,group\na/1.png,x,train,g1\n2.png,y,test,\n"}
    found = annotate(["a/1.png", "b/2.png"], "l.csv", tables.__getitem__)
    assert found == {
        "a/1.png": Annotation("x", "g1", "train"),
        "b/2.png": Annotation("y", None, "test"),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Received: none"),
        ("name,label\na.png,x\n", "Received: 'name', 'label'"),
        ("file,label\na.png\n", "line 2"),
        ("file,label\na.png,x,y\n", "line 2"),
        ("file,label\na.png,x\na.png,y\n", "a.png stands there twice"),
    ],
)
def test_damaged_tables(text, says):
    with pytest.raises(LabelError, match=says):
        parse_table(text, "l.csv")


def test_table_must_name_every_image_and_which_one():
    with pytest.raises(LabelError, match=r"no line for a/2\.png"):
        annotate(["a/1.png", "a/2.png"], "l.csv", lambda _: "file,label\n1.png,x\n")
    with pytest.raises(LabelError, match=r"a/1\.png and b/1\.png"):
        annotate(["a/1.png", "b/1.png"], "l.csv", lambda _: "file,label\n1.png,x\n")


def test_groups_come_from_one_place():
    with pytest.raises(ConfigurationError, match="Give one"):
        annotate(
            ["1.png"], "l.csv", lambda _: "file,label,group\n1.png,x,g\n", group="(?P<group>.)"
        )


def test_class_order():
    assert class_names(["class10", "class9"]) == ("class10", "class9")
    assert class_names(["2", "10", "2"]) == ("2", "10")


@pytest.mark.parametrize(
    ("rule", "label"),
    [
        ("folder", "day 2"),
        ("folder:-1", "day 2"),
        ("folder:1", "steel"),
        ("folder:2", "S7"),
        ("folder:-3", "steel"),
        ("path:^(?P<label>[^/]+)/", "steel"),
        (r"path:/(?P<label>S\d)/", "S7"),
    ],
)
def test_labels_from_any_level_of_the_path(rule, label):
    assert annotate(["steel/S7/day 2/1.png"], rule, no_file) == {
        "steel/S7/day 2/1.png": Annotation(label)
    }


@pytest.mark.parametrize(
    "rule", ["folder:0", "folder:x", "folder:", "path:(", "path:(a)", "regex:("]
)
def test_rules_that_cannot_be_meant(rule):
    with pytest.raises(ConfigurationError):
        annotate(["a/1.png"], rule, no_file)


def test_a_level_that_an_image_does_not_have():
    with pytest.raises(LabelError, match=r"2\.png lies in 1 folders"):
        annotate(["a/b/1.png", "a/2.png"], "folder:2", no_file)
    with pytest.raises(LabelError, match=r"3\.png lies directly"):
        annotate(["3.png"], "folder", no_file)


def test_other_columns_of_a_table_are_ignored():
    text = "operator,file,magnification,label\nJ.,1.png,500,x\nK.,2.png,,y\n"
    assert parse_table(text, "l.csv") == {"1.png": Annotation("x"), "2.png": Annotation("y")}


COMPOSED, DECOMPOSED = "Gr\u00f6\u00dfe", "Gro\u0308\u00dfe"


def test_composed_and_decomposed_names_are_one():
    paths = [f"{COMPOSED}/1.png", f"{DECOMPOSED}/2.png"]
    assert {each.label for each in annotate(paths, "folder", no_file).values()} == {COMPOSED}
    table = f"file,label,group\n{COMPOSED}/1.png,{DECOMPOSED},{DECOMPOSED}\n2.png,{COMPOSED},\n"
    found = annotate([f"{DECOMPOSED}/1.png", paths[1]], "l.csv", lambda _: table)
    assert list(found) == [f"{DECOMPOSED}/1.png", paths[1]]
    assert list(found.values()) == [Annotation(COMPOSED, COMPOSED), Annotation(COMPOSED)]
    with pytest.raises(LabelError, match="twice"):
        parse_table(f"file,label\n{COMPOSED},x\n{DECOMPOSED},x\n", "l.csv")


@pytest.mark.parametrize(
    ("sources", "rule", "text"),
    [
        (["a /1.png"], "folder", ""),
        ([" a/1.png"], "path:^(?P<label>[^/]+)/", ""),
        (["1.png"], "l.csv", "file,label\n1.png, a\n"),
        (["1.png"], "l.csv", "file,label,group\n1.png,a,g \n"),
        (["1.png"], "l.csv", "file,label,split\n1.png,a,train\u00a0\n"),
        (["1.png"], "l.csv", "file, label\n1.png,a\n"),
    ],
)
def test_stray_spaces_make_no_second_class(sources, rule, text):
    with pytest.raises(LabelError):
        annotate(sources, rule, lambda _: text)
