"""Where an estimator's data, checkpoints and logs lie: a folder that the driver, Spark's tasks and the ranks share."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError

_LOCAL = ("", "file")


class StoreError(WorkbenchError, OSError):
    """A store cannot be read or written; the text says which, and why."""


class Store:
    """Names within a folder, and how files there are read and written.

    The folder may be on any file system of pyarrow's: a path, ``file://``, ``hdfs://``, ``s3://``, ``gs://``. Spark
    writes the data there, so a path must mean the same folder on all nodes.

    Args:
        prefix_path: the folder.
        train_path, val_path, test_path, runs_path: parts of it that are to be elsewhere.
        save_runs: keep checkpoints and logs.
        storage_options: for pyarrow's file system, as ``{"endpoint_override": "…"}`` for s3.
        checkpoint_filename: of each run's checkpoint.

    Example:
        >>> store = Store.create("/shared/work")
        >>> store.get_train_data_path(3), store.get_checkpoint_path("first")
        ('file:///shared/work/intermediate_train_data.3', 'file:///shared/work/runs/first')
    """

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        self.prefix_path = _as_uri(str(prefix_path))
        self.storage_options = dict(storage_options or {})
        self.checkpoint_filename = checkpoint_filename or "checkpoint"
        self._train, self._val, self._test, self._runs = (
            _as_uri(path) if path else posixpath.join(self.prefix_path, name)
            for path, name in (
                (train_path, "intermediate_train_data"),
                (val_path, "intermediate_val_data"),
                (test_path, "intermediate_test_data"),
                (runs_path, "runs"),
            )
        )
        self._save_runs = save_runs

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """The store for a path."""
        local = _as_uri(str(prefix_path)).startswith("file:")
        return (LocalStore if local else FilesystemStore)(prefix_path, *args, **kwargs)

    # --- names ----------------------------------------------------------------------------------------

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Of the data to train with; ``idx`` is the dataset's number."""
        return _numbered(self._train, idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        return _numbered(self._val, idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        return _numbered(self._test, idx)

    def saving_runs(self) -> bool:
        """Are checkpoints and logs kept?"""
        return self._save_runs

    def get_runs_path(self) -> str:
        return self._runs

    def get_run_path(self, run_id: str) -> str:
        return posixpath.join(self._runs, run_id)

    def get_checkpoint_path(self, run_id: str) -> str | None:
        return self.get_run_path(run_id) if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        return self.checkpoint_filename

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """The files of a run whose names end so."""
        from pyarrow.fs import FileSelector

        fs, path = self._place(self.get_run_path(run_id))
        found = fs.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted(each.path for each in found if each.path.endswith(suffix))

    def get_logs_subdir(self) -> str:
        return "logs"

    def get_logs_path(self, run_id: str) -> str | None:
        return posixpath.join(self.get_run_path(run_id), self.get_logs_subdir()) if self._save_runs else None

    # --- files ----------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        from pyarrow.fs import FileType

        fs, inside = self._place(path)
        return bool(fs.get_file_info(inside).type != FileType.NotFound)

    def read(self, path: str) -> bytes:
        """A file's content.

        Raises:
            StoreError: it cannot be read.
        """
        fs, inside = self._place(path)
        try:
            with fs.open_input_stream(inside) as file:
                return bytes(file.read())
        except OSError as error:
            raise self.error("read", path, error) from error

    def write(self, path: str, content: bytes) -> None:
        """Write a file that is there as a whole, or not at all.

        Raises:
            StoreError: it cannot be written.
        """
        fs, inside = self._place(path)
        try:
            fs.create_dir(posixpath.dirname(inside), recursive=True)
            with fs.open_output_stream(f"{inside}.unfinished") as file:
                file.write(content)
            fs.move(f"{inside}.unfinished", inside)
        except OSError as error:
            raise self.error("written", path, error) from error

    def write_text(self, path: str, text: str) -> None:
        self.write(path, text.encode())

    def sync(self, folder: str, run_id: str) -> None:
        """Copy a local folder's files into a run's."""
        for file in sorted(Path(folder).rglob("*")):
            if file.is_file():
                name = file.relative_to(folder).as_posix()
                self.write(posixpath.join(self.get_run_path(run_id), name), file.read_bytes())

    def delete(self, path: str) -> None:
        """Remove a folder, if it is there."""
        from pyarrow.fs import FileType

        fs, inside = self._place(path)
        if fs.get_file_info(inside).type == FileType.Directory:
            fs.delete_dir(inside)

    # --- data -----------------------------------------------------------------------------------------

    def is_parquet_dataset(self, path: str) -> bool:
        """Is there Parquet that can be read?"""
        try:
            return bool(self.get_parquet_dataset(path).files)
        except (OSError, ValueError):
            return False

    def get_parquet_dataset(self, path: str) -> Any:
        """A :class:`pyarrow.dataset.FileSystemDataset`."""
        from pyarrow import dataset

        fs, inside = self._place(path)
        return dataset.dataset(inside, filesystem=fs, format="parquet")

    def spark_path(self, path: str) -> str:
        """As Spark calls it, which knows s3 by the name of Hadoop's file system."""
        return "s3a" + path.removeprefix("s3") if path.startswith("s3://") else path

    def error(self, what: str, path: str, error: BaseException) -> StoreError:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = f"there is no room left ({error})" if full or "No space left" in str(error) else str(error)
        return StoreError(f"{path} cannot be {what}: {why}. The store is {self.prefix_path}: can all nodes use it?")

    def _place(self, path: str) -> tuple[Any, str]:
        """The file system of a path, and the path there."""
        from pyarrow import fs

        scheme, _, rest = path.partition("://")
        if scheme == "file":
            return fs.LocalFileSystem(), rest
        if scheme == "s3" and self.storage_options:
            return fs.S3FileSystem(**self.storage_options), rest
        try:
            found, inside = fs.FileSystem.from_uri(path)
        except (OSError, ValueError, NotImplementedError) as error:
            raise self.error("reached", path, error) from error
        return found, str(inside)


class FilesystemStore(Store):
    """A store on any file system of pyarrow's."""


class LocalStore(Store):
    """A store in a folder that all nodes have at the same path; with one node, any folder."""


class HDFSStore(Store):
    """A store in HDFS; pyarrow needs libhdfs and Hadoop's class path for it.

    Args:
        prefix_path: with ``hdfs://host:port``, or without: then ``host`` and ``port`` say where.
        host, port: of the name node; by default those of Hadoop's own configuration.
        others: see :class:`Store`.
    """

    def __init__(self, prefix_path: str, *args: Any, host: str = "default", port: int = 0, **others: Any) -> None:
        where = f"{host}:{port}" if port else host
        path = prefix_path if "://" in prefix_path else f"hdfs://{where}{prefix_path}"
        super().__init__(path, *args, **others)


def _as_uri(path: str) -> str:
    scheme, found, rest = path.partition("://")
    if not found and path.startswith("file:"):
        scheme, rest = "file", path.removeprefix("file:")
    elif not found:
        scheme, rest = "", path
    return f"file://{Path(rest).absolute()}" if scheme in _LOCAL else path.rstrip("/")


def _numbered(path: str, idx: int | None) -> str:
    return path if idx is None else f"{path}.{idx}"
