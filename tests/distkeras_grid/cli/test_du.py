from distkeras_grid.cli.du import format_usage
from distkeras_grid.webhdfs.connection import Summary

ENTRIES = [Summary("/t/a", 5, 15, 1, 0, None), Summary("/t/b\n", 1200, 3600, 12, 2, None)]


def test_a_table_has_a_line_for_each_entry_and_one_for_all():
    assert format_usage(Summary("/t", 1205, 3615, 13, 3, None), ENTRIES) == [
        "bytes  on disk  files  path",
        "    5       15      1  /t/a",
        " 1200     3600     12  /t/b\\n",
        " 1205     3615     13  /t",
    ]


def test_the_rest_of_a_quota_is_told():
    *_, last = format_usage(Summary("/t", 1205, 3615, 13, 3, 4000), [])
    assert last.split()[:3] == ["385", "of", "4000"]
