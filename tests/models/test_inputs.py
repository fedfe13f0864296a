"""`models.inputs`: every kind of place is opened as what it is, with labels only where they are wanted."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flatfold.models.images import FolderImages, NpzImages, Transform
from flatfold.models.inputs import open_images
from flatfold.models.lists import ListImages
from flatfold.models.tables import TableImages

PLAIN = Transform()
LABELS = [1, 0, 2]


def picture(value):
    return Image.new("RGB", (5, 4), (value, value, value))


def png(value):
    file = io.BytesIO()
    picture(value).save(file, "PNG")
    return file.getvalue()


def folder(root):
    for value, label in enumerate(LABELS):
        (root / "photos" / "abc"[label]).mkdir(parents=True)
        picture(value).save(root / "photos" / "abc"[label] / "x.png")
    return root / "photos"


def table(image="image", label="label"):
    return pa.table({image: pa.array([png(value) for value in range(3)], pa.binary()), label: LABELS})


def parquet(root, name="t.parquet", **columns):
    pq.write_table(table(**columns), root / name)
    return root / name


def parquets(root):
    (root / "t").mkdir()
    return parquet(root / "t").parent


def datasets(root):
    (root / "d").mkdir()
    with pa.OSFile(str(root / "d" / "x.arrow"), "wb") as file, pa.ipc.new_stream(file, table().schema) as stream:
        stream.write_table(table())
    (root / "d" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "x.arrow"}]}))
    return root / "d"


def npz(root, x="x", y="y", name="d.npz"):
    np.savez(root / name, **{x: np.stack([np.asarray(picture(value)) for value in range(3)]), y: np.array(LABELS)})
    return root / name


def listed(root, name="l.txt"):
    folder(root)
    lines = [f"photos/{'abc'[label]}/x.png {label}\n" for label in LABELS]
    (root / name).write_text("".join(lines))
    return root / name


KINDS = {
    folder: FolderImages,
    parquet: TableImages,
    parquets: TableImages,
    datasets: TableImages,
    npz: NpzImages,
    listed: ListImages,
}


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("make", KINDS)
def test_every_place_is_opened_as_what_it_is(tmp_path, make, labels):
    place = make(tmp_path)
    for given in (place, str(place)):
        source = open_images(given, Transform(crop=2), 2, labels=labels)
        assert type(source) is KINDS[make]
        assert (source.rows, source.batch_size, source.transform) == (3, 2, Transform(crop=2))
        assert (source.labels is None) is not labels
        batches = [batch[0] if labels else batch for batch in source]
        values = [round(float(each)) for x in batches for each in x[:, 0, 0, 0] * 255]
        order = [1, 0, 2] if make is folder else [0, 1, 2]
        assert values == order
        assert not labels or source.labels.tolist() == [LABELS[value] for value in order]


def test_the_usual_size_of_a_batch_is_64(tmp_path):
    assert open_images(npz(tmp_path), PLAIN, labels=False).batch_size == 64


@pytest.mark.parametrize("name", ["l.txt", "l.lst", "l.list", "L.TXT"])
def test_lists_have_three_endings(tmp_path, name):
    assert isinstance(open_images(listed(tmp_path, name), PLAIN, labels=True), ListImages)


def test_capital_letters_in_an_ending_do_not_matter(tmp_path):
    assert isinstance(open_images(parquet(tmp_path, "T.PARQUET"), PLAIN, labels=True), TableImages)
    assert isinstance(
        open_images(npz(tmp_path, name="D.npz").rename(tmp_path / "D.NPZ"), PLAIN, labels=True), NpzImages
    )


def test_labels_that_are_not_wanted_need_not_be_there(tmp_path):
    assert open_images(npz(tmp_path, y="other"), PLAIN, labels=False).labels is None
    assert open_images(parquet(tmp_path, label="other"), PLAIN, labels=False).labels is None
    (tmp_path / "plain.txt").write_text("my photo.png\nb.png -1\n")
    assert open_images(tmp_path / "plain.txt", PLAIN, labels=False).paths == ("my photo.png", "b.png")
    picture(0).save(folder(tmp_path) / "loose.png")
    assert open_images(tmp_path / "photos", PLAIN, labels=False).rows == 4
    for place in ("d.npz", "t.parquet", "plain.txt", "photos"):
        with pytest.raises(ValueError, match=r"no array 'y'|column 'label'|a line must be|either images or one"):
            open_images(tmp_path / place, PLAIN, labels=True)


def test_a_flat_folder_has_no_labels_even_if_they_are_wanted(tmp_path):
    assert open_images(folder(tmp_path) / "a", PLAIN, labels=True).labels is None


def test_columns_and_arrays_can_be_chosen(tmp_path):
    source = open_images(parquet(tmp_path, image="img", label="fine"), PLAIN, labels=True, image="img", label="fine")
    assert (source.labels.tolist(), source.picture(2)[1].getpixel((0, 0))[0]) == (LABELS, 2)
    source = open_images(npz(tmp_path, x="a", y="b"), PLAIN, labels=True, x="a", y="b")
    assert (source.labels.tolist(), int(source.picture(2)[1][0, 0, 0])) == (LABELS, 2)


def test_the_paths_of_a_list_start_in_root_or_beside_it(tmp_path):
    listed(tmp_path)
    (tmp_path / "far").mkdir()
    (tmp_path / "l.txt").rename(tmp_path / "far" / "l.txt")
    assert open_images(tmp_path / "far" / "l.txt", PLAIN, labels=True, root=tmp_path).missing() == []
    assert len(open_images(tmp_path / "far" / "l.txt", PLAIN, labels=True).missing()) == 3


@pytest.mark.parametrize("make", [kind for kind in KINDS if kind is not listed])
def test_a_root_is_for_lists_only(tmp_path, make):
    with pytest.raises(ValueError, match=r"root is where the paths of a list start, but .* is no list\. Leave it out"):
        open_images(make(tmp_path), PLAIN, labels=False, root=tmp_path)


@pytest.mark.parametrize("name", ["none", "none.npz", "none.txt", "none.parquet", "none.png"])
def test_a_place_that_is_not_there_is_told(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=rf"no images at .*{name}: it does not exist\. Check the path"):
        open_images(tmp_path / name, PLAIN, labels=False)


@pytest.mark.parametrize("name", ["x.png", "x.csv", "x", "x.npy"])
def test_a_file_of_another_kind_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(png(0))
    with pytest.raises(
        ValueError,
        match=r"a file that ends in \.parquet, \.npz, \.txt, \.lst, \.list \(the last three for lists of paths\), got "
        rf".*{name}\. Pass the folder in which images lie, or a list of them",
    ):
        open_images(tmp_path / name, PLAIN, labels=False)


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_folder_of_images_and_parquet_files_is_refused_but_not_its_parquet_file(tmp_path, below):
    parquet(tmp_path)
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    (tmp_path / below / "x.png").write_bytes(png(0))
    with pytest.raises(
        ValueError,
        match=r"either images or parquet files, but has both: t\.parquet lies beside images\. Pass the parquet file",
    ):
        open_images(tmp_path, PLAIN, labels=False)
    assert open_images(tmp_path / "t.parquet", PLAIN, labels=True).rows == 3


def test_hidden_parquet_files_and_folders_of_such_a_name_make_no_table(tmp_path):
    place = folder(tmp_path)
    parquet(place, "._t.parquet")
    (place / "a" / "x.parquet").mkdir()
    assert isinstance(open_images(place, PLAIN, labels=True), FolderImages)


def test_a_table_of_datasets_may_keep_its_images_beside_it(tmp_path):
    place = datasets(tmp_path)
    (place / "x.png").write_bytes(png(0))
    assert isinstance(open_images(place, PLAIN, labels=True), TableImages)


def test_a_folder_of_several_splits_or_without_anything_is_refused_by_what_it_should_be(tmp_path):
    with pytest.raises(ValueError, match="holds no image"):
        open_images(tmp_path, PLAIN, labels=False)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ValueError, match="it holds the splits 'train', 'test'"):
        open_images(tmp_path, PLAIN, labels=False)
