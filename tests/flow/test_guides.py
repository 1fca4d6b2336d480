"""What guides 000 and 001 tell a user to do works, from their own config to the files they promise."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest

from flatout.cli.main import main
from flatout.config import load_config
from flatout.store import DataPreprocessor, StoreReader

GUIDES = Path(__file__).resolve().parents[3] / "shared" / "guides"

CARDIAC = """{
  "output_dir": "outputs/cardiac_training",
  "csv_path": "/path/to/your/data.csv",
  "base_path": "/path/to/your/images",
  "epochs": 100,
  "batch_size": 8,
  "learning_rate": 1e-4,
  "num_workers": 4,
  
  "use_fast_loader": true,
  "preprocessed_data_dir": "/data/cardiac_training_fast",
  "preprocess_batch_size": 16,
  "cache_config": {
    "enable_cache": true,
    "cache_size": 1000,
    "preload_train_data": false,
    "preload_val_data": false
  }
}"""  # noqa: W293  as it stands in the guide

HEART_SOUND = """
hardware:
  num_workers: 8          # 从4增加到8
  pin_memory: true
  prefetch_factor: 4      # 新增
  persistent_workers: true # 新增
  device: "cuda"

# ============== 数据缓存 ==============
data_cache:
  cache_in_memory: true           # 启用内存缓存
  view_cache_refresh_epochs: 5    # 每5个epoch刷新视图缓存
  use_gpu_augment: true           # 启用GPU增强
"""

PROMISED = ("preprocessed_data.h5", "data_metadata.json", "preprocessing.log", "preprocessing_stats.json")
SHAPE = (8, 7, 6)


@pytest.mark.parametrize(("number", "config"), [("000", CARDIAC), ("001", HEART_SOUND)])
def test_the_configs_are_the_guides_own(number: str, config: str) -> None:
    found = list(GUIDES.glob(f"{number}*"))
    if not found:
        pytest.skip("the guides are not on this machine")
    assert config.strip() in found[0].read_text(encoding="utf-8")


class Cardiac:
    """A CSV of tiny scans, and guide 000's config with nothing but its paths changed."""

    def __init__(self, folder: Path, num_scans: int = 10) -> None:
        self.folder, self.csv = folder, folder / "data.csv"
        self.images, self.store = folder / "images", folder / "cardiac_training_fast"
        self.config = folder / "config.json"
        self.images.mkdir()
        self.csv.write_text("image_path,label\n")
        self.add(num_scans)
        text = CARDIAC.replace("/path/to/your/data.csv", str(self.csv))
        text = text.replace("/path/to/your/images", str(self.images))
        self.config.write_text(text.replace("/data/cardiac_training_fast", str(self.store)))

    def voxels(self, number: int) -> np.ndarray:
        return np.random.default_rng(number).integers(-1000, 1000, SHAPE).astype(np.int16)

    def add(self, num_scans: int) -> None:
        start = len(list(self.images.iterdir()))
        with open(self.csv, "a") as file:
            for number in range(start, start + num_scans):
                image = nibabel.Nifti1Image(self.voxels(number), np.eye(4))
                nibabel.save(image, self.images / f"scan_{number:03d}.nii.gz")
                file.write(f"scan_{number:03d}.nii.gz,{number % 3}\n")

    def stats(self) -> dict[str, int]:
        return json.loads((self.store / "preprocessing_stats.json").read_text())


@pytest.fixture
def cardiac(tmp_path: Path) -> Cardiac:
    return Cardiac(tmp_path)


@pytest.fixture
def in_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment wins over the guide's four workers; starting them is most of the time."""
    monkeypatch.setenv("FLATOUT_NUM_WORKERS", "0")


def test_guide_000_step_2_gives_the_files_it_promises(cardiac: Cardiac) -> None:
    """`--config config.json` with the options as the guide spells them, in worker processes."""
    elsewhere = cardiac.folder / "elsewhere"
    options = ["--force", "--output_dir", str(elsewhere), "--batch_size", "4", "--num_workers", "2"]
    assert main(["prepare", "--config", str(cardiac.config), *options]) == 0
    assert not cardiac.store.exists()
    assert [name for name in PROMISED if not (elsewhere / name).is_file()] == []
    with h5py.File(elsewhere / "preprocessed_data.h5") as file:
        images, keys = file["image"][:], [key.decode() for key in file["key"][:]]
        labels = file["label"][:]
    for key, image, label in zip(keys, images, labels, strict=True):
        number = int(re.findall(r"\d+", key)[0])
        assert np.array_equal(image[0], cardiac.voxels(number))
        assert label == number % 3
    assert len(keys) == 10


@pytest.mark.usefixtures("in_caller")
def test_guide_000_verifies_and_notices_damage(cardiac: Cardiac) -> None:
    config = json.loads(cardiac.config.read_text())
    DataPreprocessor(config).run()
    # The guide's own two lines:
    preprocessor = DataPreprocessor(config)
    is_valid = preprocessor.verify_data_integrity()
    assert is_valid
    shard = next((cardiac.store / "shards").glob("*.h5"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert not preprocessor.verify_data_integrity()
    # "HDF5 file damaged: use --force".
    assert main(["prepare", "--config", str(cardiac.config), "--force"]) == 0
    assert preprocessor.verify_data_integrity()


@pytest.mark.usefixtures("in_caller")
def test_guide_000_updates_only_what_is_new(cardiac: Cardiac) -> None:
    command = ["prepare", "--config", str(cardiac.config)]
    assert main(command) == 0
    first = StoreReader(cardiac.store)
    cardiac.add(3)
    assert main(command) == 0
    assert (cardiac.stats()["processed"], cardiac.stats()["unchanged"]) == (3, 10)
    second = StoreReader(cardiac.store)
    assert len(second) == 13
    assert set(first.keys()) < set(second.keys())
    assert main(command) == 0
    assert cardiac.stats()["num_samples"] == 13


@pytest.mark.usefixtures("in_caller")
def test_guide_000_tells_in_the_log_which_files_failed(cardiac: Cardiac) -> None:
    cardiac.add(10)
    (cardiac.images / "scan_004.nii.gz").unlink()
    (cardiac.images / "scan_011.nii.gz").write_bytes(b"not a scan")
    assert main(["prepare", "--config", str(cardiac.config)]) == 0
    log = (cardiac.store / "preprocessing.log").read_text()
    quarantine = (cardiac.store / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in quarantine] == ["scan_004.nii.gz", "scan_011.nii.gz"]
    assert "scan_004.nii.gz" in log
    assert "scan_011.nii.gz" in log
    assert cardiac.stats()["failed"] == 2


@pytest.fixture
def cycles(tmp_path: Path) -> Path:
    """Guide 001's data folder: cycles of 4000 samples as .npy."""
    folder = tmp_path / "processed"
    for kind in ("abnormal", "normal"):
        (folder / kind).mkdir(parents=True)
        for number in range(6):
            cycle = np.random.default_rng(number).standard_normal((1, 4000)).astype(np.float32)
            np.save(folder / kind / f"{number}.npy", cycle)
    return folder


@pytest.mark.usefixtures("in_caller")
def test_guide_001_validates(cycles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--data-dir DIR --validate-only` is `flatout stats DIR --validate-only`."""
    before = sorted(cycles.rglob("*"))
    assert main(["stats", str(cycles), "--validate-only"]) == 0
    capsys.readouterr()
    (cycles / "normal" / "3.npy").write_bytes(b"\x93NUMPY broken")
    assert main(["stats", str(cycles), "--validate-only", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in document["bad"]] == ["normal/3.npy"]
    assert sorted(cycles.rglob("*")) == before  # nothing was written


@pytest.mark.usefixtures("in_caller")
def test_guide_001_gives_statistics(cycles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--data-dir DIR --stats` is `flatout stats DIR`."""
    assert main(["stats", str(cycles), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_samples"] == 12
    assert document["memory_bytes"] >= 12 * 4000 * 4
    fields = {field["name"]: field for field in document["fields"]}
    assert sum(sum(by_split.values()) for by_split in fields["label"]["classes"].values()) == 12
    assert [field["shape"] for field in fields.values() if field["kind"] == "array"] == [[1, 4000]]


@pytest.mark.usefixtures("in_caller")
def test_guide_001_config_prepares_its_data_folder(cycles: Path, tmp_path: Path) -> None:
    config, store = tmp_path / "default.yaml", tmp_path / "store"
    config.write_text(f"data_dir: {cycles}\n{HEART_SOUND}", encoding="utf-8")
    assert main(["prepare", "--config", str(config), "--output-dir", str(store)]) == 0
    assert load_config(config).cache_in_memory is True
    sample = StoreReader(store).read(0)
    assert np.array_equal(sample["array"], np.load(cycles / "abnormal" / "0.npy"))
