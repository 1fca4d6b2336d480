"""Manifests and decoders: path -> arrays."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.source.convert import TextBytes as TextBytes
    from flatout.source.doubts import doubtful_classes as doubtful_classes
    from flatout.source.files import SourceFile as SourceFile
    from flatout.source.files import hash_file as hash_file
    from flatout.source.guess import Guess as Guess
    from flatout.source.guess import guess_fields as guess_fields
    from flatout.source.identity import hash_key as hash_key
    from flatout.source.identity import hash_text as hash_text
    from flatout.source.identity import hash_texts as hash_texts
    from flatout.source.keys import key_hashes as key_hashes
    from flatout.source.kinds import LIBRARIES as LIBRARIES
    from flatout.source.kinds import VERSIONS as VERSIONS
    from flatout.source.kinds import added_code as added_code
    from flatout.source.maker import DatasetMaker as DatasetMaker
    from flatout.source.maker import FieldsMaker as FieldsMaker
    from flatout.source.maker import SampleMaker as SampleMaker
    from flatout.source.maker import TransformMaker as TransformMaker
    from flatout.source.manifest import Manifest as Manifest
    from flatout.source.manifest import manifest_of_range as manifest_of_range
    from flatout.source.manifest import read_manifest as read_manifest
    from flatout.source.paths import find_path as find_path
    from flatout.source.registry import load_object as load_object
    from flatout.source.scan import RowStates as RowStates
    from flatout.source.scan import Spread as Spread
    from flatout.source.scan import make_sighter as make_sighter
    from flatout.source.scan import scan_rows as scan_rows
    from flatout.source.settle import settle_fields as settle_fields
    from flatout.source.settle import stored_fields as stored_fields
    from flatout.source.sight import NO_SIGHT as NO_SIGHT
    from flatout.source.sight import Found as Found
    from flatout.source.sight import Sight as Sight
    from flatout.source.sight import Sighter as Sighter
    from flatout.source.sight import Sights as Sights
    from flatout.source.splits import assign_splits as assign_splits
    from flatout.source.splits import normalise_split as normalise_split
    from flatout.source.splits import places_below as places_below
    from flatout.source.splits import plain_text as plain_text
    from flatout.source.splits import rows_without_split as rows_without_split
    from flatout.source.splits import text_hashes as text_hashes
    from flatout.source.tarred import absolute_patterns as absolute_patterns
    from flatout.source.uncached import keeping_no_bytecode as keeping_no_bytecode
    from flatout.source.value import collect_classes as collect_classes
    from flatout.source.value import read_label as read_label

_HOMES = {
    "TextBytes": "convert",
    "doubtful_classes": "doubts",
    "SourceFile": "files",
    "hash_file": "files",
    "Guess": "guess",
    "guess_fields": "guess",
    "hash_key": "identity",
    "hash_text": "identity",
    "hash_texts": "identity",
    "key_hashes": "keys",
    "LIBRARIES": "kinds",
    "VERSIONS": "kinds",
    "added_code": "kinds",
    "DatasetMaker": "maker",
    "FieldsMaker": "maker",
    "SampleMaker": "maker",
    "TransformMaker": "maker",
    "Manifest": "manifest",
    "manifest_of_range": "manifest",
    "read_manifest": "manifest",
    "find_path": "paths",
    "load_object": "registry",
    "RowStates": "scan",
    "Spread": "scan",
    "make_sighter": "scan",
    "scan_rows": "scan",
    "NO_SIGHT": "sight",
    "Found": "sight",
    "Sight": "sight",
    "Sighter": "sight",
    "Sights": "sight",
    "settle_fields": "settle",
    "stored_fields": "settle",
    "assign_splits": "splits",
    "normalise_split": "splits",
    "places_below": "splits",
    "plain_text": "splits",
    "rows_without_split": "splits",
    "text_hashes": "splits",
    "absolute_patterns": "tarred",
    "keeping_no_bytecode": "uncached",
    "collect_classes": "value",
    "read_label": "value",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
