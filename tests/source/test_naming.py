"""Names of fields: each is one that a store takes, and what is fine already stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.source.naming import free_name, setting_of, usable_name, without_path_words
from flatout.store.layout import check_field_name


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("age", "age"),
        ("Length_of-stay__", "Length_of-stay__"),
        ("a" * 64, "a" * 64),
        ("Age (years)", "Age_years"),
        (" spaced  out ", "spaced_out"),
        ("_private", "private"),
        ("Größe", "Grosse"),
        ("müde%", "mude"),
        ("2nd", "column_2nd"),
        ("0", "column_0"),
        ("flatout", "column_flatout"),
        ("(flatout)", "column_flatout"),
        ("b" * 70, "b" * 64),
        ("9" * 70, "column_" + "9" * 57),
        ("年", ""),
        ("%", ""),
        ("", ""),
    ],
)
def test_what_is_left_of_a_name(column: str, name: str) -> None:
    assert usable_name(column) == name


@given(st.text(max_size=80) | st.text("aZ0_- ()/.ß", max_size=80))
def test_a_usable_name_is_taken_by_a_store_and_stays(column: str) -> None:
    name = usable_name(column)
    if name:
        check_field_name(name)
    assert usable_name(name) == name


@given(
    st.sampled_from(["a", "a" * 64, "x_1", "x_2"]), st.sets(st.sampled_from(["a", "a_2", "x_1", "x_2", "x_3"]))
)
def test_a_free_name_is_free_and_short_enough(name: str, taken: set[str]) -> None:
    taken |= {"a" * 64}
    found = free_name(name, name.rstrip("0123456789_"), taken)
    check_field_name(found)
    assert found not in taken
    assert name in taken or found == name


def test_words_for_path_are_no_name() -> None:
    assert without_path_words("imagePath") == "image"
    assert without_path_words("audio file-name") == "audio"
    assert without_path_words("path") == ""


def test_what_to_write_names_the_column_where_the_field_has_another_name() -> None:
    assert setting_of("age", "scalar") == "fields.age.kind: scalar"
    assert setting_of('so "far"', "text") == r'fields.so_far: {kind: text, column: "so \"far\""}'
    assert setting_of("年", "text") == 'fields.NAME: {kind: text, column: "年"}'
