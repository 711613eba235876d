"""Reads what parties hold for the label and clean jobs: tables, NPZ files, folders of images or arrays, all into one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.rows import ClientData, Rows
from grapevine.data import tables, together
from grapevine.data.columns import Column, Layout, agree, numbers
from grapevine.data.embed import PRETRAINED
from grapevine.data.pictures import as_images, read_images
from grapevine.data.sheets import existing_file, is_frame
from grapevine.data.tables import Columns, Table
from grapevine.jobs.settings import CleanSettings, LabelSettings

if TYPE_CHECKING:
    from torch import Tensor

    from grapevine.jobs.features import FeatureMaker

SERVER = "server"  # how the server's own rows are called


@dataclass(frozen=True)
class Party:
    """Rows of a party, or of the server: a table (n, d; NaN: missing), or images (n, c, h, w) as uint8.

    Labels are class names, None where a row has none. `truth` is for measuring, `model` what the run that made the features says
    of the rows itself; `pictures` are what people can see of images. `columns` are a table's: with a category among them `x` is
    raw, and has to be encoded once its values are agreed on (`data.columns`).
    """

    name: str
    x: np.ndarray
    labels: list[str | None]
    ids: list[str]
    truth: list[str | None] | None = None
    model: list[str] | None = None
    columns: tuple[Column, ...] = ()
    pictures: Tensor | None = None

    @property
    def image(self) -> bool:
        return self.x.ndim == 4

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted({label for label in self.labels if label is not None}))

    def labelled(self, classes: Sequence[str]) -> Rows:
        """The labelled rows, with the numbers of their classes."""
        number = {name: i for i, name in enumerate(classes)}
        known = [(i, number[label]) for i, label in enumerate(self.labels) if label is not None]
        index, y = np.array(known, np.int64).reshape(-1, 2).T
        return Rows.of_arrays(self.x, index, y)

    def data(self) -> ClientData:
        labelled = self.labelled(self.classes)
        rest = np.array([i for i, label in enumerate(self.labels) if label is None], np.int64)
        unlabelled = Rows.of_arrays(labelled.x, rest, np.full_like(rest, -1))
        return ClientData(labelled, unlabelled, Rows.of_arrays(labelled.x, rest[:0], rest[:0]), self.classes,
                          columns=self.columns)  # fmt: skip


def read(s: LabelSettings | CleanSettings, parties: Sequence[Any], names: Sequence[str] | None = None, server: Any = None,
         layout: Layout | None = None, encode: bool = True) -> tuple[list[Party], bool]:  # fmt: skip
    """The rows of all, the server's first if it has any; and whether all labels came as whole numbers.

    Parties are paths, frames with a label column, or (X, y) with y = −1 where a row is not labelled. The clean job takes images
    as they are, the label job only their features. Tables come encoded: by `layout` if one was agreed on, else by what all tables
    hold together; with `encode=False` or a raw layout they come raw.
    """
    given = [*parties] if server is None else [server, *parties]
    forms = {_form(each) for each in given}
    if len(forms) > 1:
        who = "parties" if server is None else "server and the parties"
        raise Mistake(
            f"some of the {who} are {' and others '.join(sorted(forms, key=FORMS.index))}: give all of them in the same form."
        )
    if forms == {"files"}:
        _check_words("files", names=names)
        found, whole = _read_files(s, [str(path) for path in given], server is not None, layout), False
    else:
        found = _from_objects(s, given, names, server is not None, layout)
        whole = forms == {"arrays"} and all(np.asarray(y).dtype.kind in "iu" for _, y in given)
    first = "the server" if server is not None else found[0].name if found else ""
    return _alike(_encoded(found, s.impute, layout, server is not None) if encode else found, first), whole


FORMS = ("files", "frames", "arrays")


def _form(each: Any) -> str:
    return "files" if isinstance(each, (str, Path)) else "frames" if is_frame(each) else "arrays"


def _check_words(given: str, **words: Any) -> None:
    """Refuse a setting that has no effect for parties of this form."""
    said = [word for word, value in words.items() if value]
    if said:
        meant = "arrays" if given == "files" else "files"
        raise Mistake(f"{said[0]} is for {meant}, but the parties are {given}: leave it out, or give them as {meant}.")


# ---------------------------------------------------------------- tables


def _columns(s: LabelSettings | CleanSettings, layout: Layout | None) -> Columns:
    """What the settings and the agreement say of a table's columns."""
    agreed = dict(features=layout.sources, kinds=layout.kinds) if layout and layout.columns else dict(features=s.features)
    truth = s.truth if isinstance(s.truth, str) else None
    return Columns(label=s.label, id=s.id, truth=truth, impute=s.impute, categories=s.categories, missing=s.missing,
                   decimal=s.decimal, **agreed)  # fmt: skip


def _tables(s: LabelSettings | CleanSettings, sources: Sequence[Any], names: Sequence[str], server: bool, layout: Layout | None,
            label: bool = True) -> list[Table]:  # fmt: skip
    """The tables of all, with the same columns, after a word on what they hold."""
    asked = _columns(s, layout)
    asked = asked if label else replace(asked, label=None)
    each = [asked] * len(sources)
    if server:  # it needs neither an id nor the truth, but what it has of them is no feature
        own = tables.column_names(sources[0])
        each[0] = replace(asked, id=s.id if s.id in own else None, truth=asked.truth if asked.truth in own else None)
    read = together.read_together(sources, each, names)
    raw = [(table.x, table.columns) for table in (read[:1] if server else read)]
    made = Layout(read[0].columns, raw=bool(layout.columns)) if layout and layout.raw else layout or agree(raw, s.impute)
    judge = layout is None or bool(layout.columns)  # a schema may be one made-up line
    together.tell(read, made, names, asked, judge, server)
    if not made.names:
        raise Mistake("no column is usable: all are text, and no value occurs in 10 rows.")
    return read


def _encoded(parties: list[Party], impute: bool, layout: Layout | None, server: bool) -> list[Party]:
    """Tables as numbers alone, by the layout that was agreed on, else by the server's table, else by all tables together.

    A server's classifier knows nothing of values that only parties have. Images stay as they are.
    """
    heads = {tuple(column.name for column in party.columns) for party in parties}
    if len(heads) != 1 or heads == {()} or layout and layout.raw:
        return parties
    made = layout or agree([(party.x, party.columns) for party in (parties[:1] if server else parties)], impute)
    return [replace(party, x=made.encode(party.x, party.columns), columns=numbers(made.names)) for party in parties]


# ---------------------------------------------------------------- arrays and frames


def _from_objects(s: LabelSettings | CleanSettings, given: Sequence[Any], names: Sequence[str] | None, server: bool,
                  layout: Layout | None) -> list[Party]:  # fmt: skip
    """(X, y), or frames that hold their labels. The server's come first, and have no truth."""
    if not given:
        return []
    people = given[server:]
    called = [f"party-{i + 1}" for i in range(len(people))] if names is None else [str(name) for name in names]
    truth = None if s.truth is None or isinstance(s.truth, str) else s.truth
    for what, values in (("names", called), ("truth", truth)):
        if values is not None and len(values) != len(people):
            raise Mistake(f"{what} has {len(values)} entries for {len(people)} parties: give one per party.")
    called = [SERVER, *called] if server else called
    frames = [is_frame(each) or isinstance(each, (tuple, list)) and len(each) == 2 and is_frame(each[0]) for each in given]
    if frames and all(frames):
        made = _from_frames(s, given, called, server, layout)
    else:
        _check_words("arrays", label=s.label, id=s.id, features=s.features, categories=s.categories, embed=s.embed)
        made = [_from_arrays(s, called[i], pair) for i, pair in enumerate(given)]
    known = [None] * server + list(truth) if truth is not None else [None] * len(made)
    return [party if own is None else _with_truth(party, own) for party, own in zip(made, known)]


def _with_truth(party: Party, truth: Sequence[Any]) -> Party:
    return replace(party, truth=_labels(party.name, truth, len(party.x), "true labels"))


def _labels(name: str, y: Any, n: int, what: str = "labels", missing: Sequence[str] = ()) -> list[str | None]:
    labels = [tables.label_name(value, missing) for value in np.asarray(y, object).ravel()]
    if len(labels) != n:
        raise Mistake(f"{name} has {n} rows and {len(labels)} {what}: give one per row, −1 where there is none.")
    return labels


def _from_frames(s: LabelSettings | CleanSettings, given: Sequence[Any], names: Sequence[str], server: bool,
                 layout: Layout | None) -> list[Party]:  # fmt: skip
    whole = all(is_frame(each) for each in given)
    if whole and s.label is None:
        raise Mistake("which column of the frames holds the labels? Name it with label=COL, or give every party as (X, y).")
    if not whole:
        _check_words("arrays", label=s.label)
    read = _tables(s, [each if whole else each[0] for each in given], names, server, layout, whole)
    labels = [
        t.labels if whole else _labels(name, each[1], len(t), missing=s.missing) for name, each, t in zip(names, given, read)
    ]
    return [Party(name, t.x, own, t.ids, t.truth, columns=t.columns) for name, own, t in zip(names, labels, read)]


def _from_arrays(s: LabelSettings | CleanSettings, name: str, pair: Any) -> Party:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise Mistake(f"{name} is a {type(pair).__name__}: give every party as (X, y), as a frame, or as the path of its file.")
    pixels = as_images(pair[0], name) if isinstance(s, CleanSettings) else None
    X = _features(name, pair[0], s.impute) if pixels is None else pixels.numpy()
    columns = numbers(f"x{j + 1}" for j in range(X.shape[1])) if pixels is None else ()
    labels = _labels(name, pair[1], len(X), missing=s.missing)
    return Party(name, X, labels, [str(n + 1) for n in range(len(X))], columns=columns, pictures=pixels)


def _features(name: str, X: Any, impute: bool) -> np.ndarray:
    try:
        X = np.array(X, np.float64)
    except (TypeError, ValueError):
        raise Mistake(f"{name}: X is not a table of numbers: give an array with one row per example.") from None
    if X.ndim == 0 or 0 in X.shape:
        raise Mistake(f"{name}: X has the shape {X.shape}: give at least one row and one feature.")
    X = X.reshape(len(X), -1)
    bad = ~np.isfinite(X)
    if bad.any() and not impute:
        row, column = np.argwhere(bad)[0]
        raise Mistake(
            f"{name}, row {row + 1}, column {column + 1} is {X[row, column]}: correct it, or use impute=True for missing values."
        )
    together.check_size(name, X)
    X[bad] = np.nan
    return X


# ---------------------------------------------------------------- files


def _read_files(s: LabelSettings | CleanSettings, paths: list[str], server: bool, layout: Layout | None) -> list[Party]:
    """One file per party, named by its stem, with columns in the order of the first file."""
    names = [SERVER, *party_names(paths[1:])] if server else party_names(paths)
    folders = [Path(path).expanduser().is_dir() for path in paths]
    if any(folders) and not all(folders):
        raise Mistake(f"{paths[folders.index(True)]} is a folder but others are files: give all as tables or all as folders of "
                      "images.")  # fmt: skip
    if all(folders):
        _check_folders(s, paths)
    maker = _maker(s.embed) if s.embed else None
    if all(folders):
        size = maker.pixels if maker else None
        read = [_read_folder(s, path, name, size, server and i == 0) for i, (path, name) in enumerate(zip(paths, names))]
    else:
        agreed = (maker.layout if maker else None) or layout
        read = _read_tables(s, paths, names, server, agreed)
        read = _encoded(read, s.impute, agreed, server) if maker else read
    check_different(read[server:], paths[server:])
    if maker is None:
        return read
    made = [maker(party.x, path) for party, path in zip(read, paths)]
    return [replace(party, x=x, model=said, columns=()) for party, (x, said) in zip(read, made)]


def check_different(read: Sequence[Party], paths: Sequence[str]) -> None:
    """Refuse one table under two paths: rows with equal ids and values. Rows are compared only where ids and sizes are equal."""
    seen: dict[tuple, list[int]] = {}
    for i, party in enumerate(read):
        alike = seen.setdefault((party.x.shape, tuple(party.ids), party.columns), [])
        for j in alike:
            if np.array_equal(party.x, read[j].x, equal_nan=party.x.dtype.kind == "f"):
                raise Mistake(f"{paths[j]} and {paths[i]} hold the same rows with the same ids: name each party once.")
        alike.append(i)


def _maker(embed: str) -> FeatureMaker:
    from grapevine.jobs.features import FeatureMaker  # here, because a job on tables must not wait for torch

    return FeatureMaker.named(embed)


def party_names(paths: Sequence[str]) -> list[str]:
    """The files' stems. Equal stems get their parent folder as a prefix."""
    real = [Path(path).expanduser().resolve() for path in paths]
    for path, other in zip(paths, real):
        if real.count(other) > 1:
            raise Mistake(f"{path} is given twice: name each party once.")
    stems = [path.name if path.is_dir() else Path(path.stem).stem if path.suffix == ".gz" else path.stem for path in real]
    names = [f"{path.parent.name}-{stem}" if stems.count(stem) > 1 else stem for stem, path in zip(stems, real)]
    for name in names:
        if names.count(name) > 1:
            raise Mistake(f"two parties would be called '{name}': rename one of the files.")
    return names


def _check_folders(s: LabelSettings | CleanSettings, paths: Sequence[str]) -> None:
    _refuse_flags_of_tables(paths[0], id=s.id, features=s.features, categories=s.categories, impute=s.impute)
    if s.label and not any(map(_listed, paths)):
        raise Mistake(f"--label {s.label} names a column, but {paths[-1]} has no table and no labels.csv: leave it out, since "
                      "the names of the folders inside are the labels.")  # fmt: skip
    if isinstance(s, LabelSettings) and s.embed is None:
        raise Mistake(
            f"{paths[0]} is a folder of images: use --embed {PRETRAINED}, or --embed RUN with the folder of a training run."
        )


def _refuse_flags_of_tables(images: str, **words: Any) -> None:
    """Images have neither columns nor missing values."""
    given = [f"--{flag}" for flag, value in words.items() if value]
    if given:
        raise Mistake(f"{images} holds images, but {' and '.join(given)} {'is' if len(given) == 1 else 'are'} for tables: "
                      f"leave {'it' if len(given) == 1 else 'them'} out.")  # fmt: skip


def _listed(path: str) -> bool:
    return (Path(path).expanduser() / "labels.csv").exists()


def _read_folder(s: LabelSettings | CleanSettings, path: str, name: str, size: int | None, server: bool) -> Party:
    """Images: folders of classes, or a labels.csv in which `label` and `truth` name columns."""
    truth = None if server else s.truth
    Columns(label=s.label or "label", truth=truth)  # which refuses one column for both
    other = [column for column in (s.label if _listed(path) else None, truth) if column and column != "label"]
    found = read_images(path, size, other)
    labels = list(found.other.get(s.label or "", found.labels))
    return Party(name, found.x.numpy(), labels, found.ids, found.other.get(truth or ""), pictures=found.x)


def _read_tables(s: LabelSettings | CleanSettings, paths: Sequence[str], names: Sequence[str], server: bool,
                 layout: Layout | None) -> list[Party]:  # fmt: skip
    if s.label is None:
        raise Mistake("which column holds the labels? Name it with --label COL; an empty cell means that the row is unlabelled.")
    takes_images = isinstance(s, CleanSettings) or s.embed is not None
    pixels = [
        _read_pixels(path) if takes_images and not s.features and not (layout and layout.columns) else None for path in paths
    ]
    if all(x is None for x in pixels):
        read = _tables(s, paths, names, server, layout)
        return [Party(name, t.x, t.labels, t.ids, t.truth, columns=t.columns) for name, t in zip(names, read)]
    odd = next((path for path, x in zip(paths, pixels) if x is None), None)
    if odd is not None:
        raise Mistake(f"{odd} is a table but others hold images: give all in the same form.")
    _refuse_flags_of_tables(paths[0], impute=s.impute, categories=s.categories)
    read = together.read_together(paths, [_columns(s, None)] * len(paths), names)
    return [Party(n, x.numpy(), t.labels, t.ids, t.truth, pictures=x) for n, x, t in zip(names, pixels, read) if x is not None]


def _read_pixels(path: str) -> Tensor | None:
    """The images in an NPZ file; None if it is a table."""
    if Path(path).suffix.lower() != ".npz":
        return None
    with tables.open_npz(existing_file(path)) as arrays:
        return as_images(tables.take_array(Path(path), arrays, "X"), path)


def _alike(read: Sequence[Party], first: str) -> list[Party]:
    """All as colour images if some are; a sentence if sizes or numbers of features differ from those of the first."""
    colour = any(party.image and party.x.shape[1] == 3 for party in read)
    read = [replace(p, x=np.repeat(p.x, 3, 1)) if colour and p.image and p.x.shape[1] == 1 else p for p in read]
    for party in read[1:]:
        here, there = party.x.shape[1:], read[0].x.shape[1:]
        if party.image != read[0].image:
            odd = ("images", "a table") if party.image else ("a table", "images")
            raise Mistake(f"{party.name} has {odd[0]} and {first} has {odd[1]}: give all in the same form.")
        if here != there and party.image:
            a, b = (f"{shape[2]}×{shape[1]}" for shape in (here, there))
            raise Mistake(f"{party.name} has images of {a} pixels and {first} has {b}: resize them all, or use --embed.")
        if here != there:
            raise Mistake(f"{party.name} has {here[0]} features and {first} has {there[0]}: give all parties the same columns.")
    return read
