"""The errors that batchscience raises at its borders."""


class BatchScienceError(Exception):
    """Something outside the program (a file, a server, a table) is not as expected."""


class LayoutError(BatchScienceError):
    """A file or folder of the raw layout cannot be read as what its place says it is."""


class ArchiveRefused(LayoutError):
    """An archive holds something that no archive of studies should hold; nothing was written."""


class SchemaError(BatchScienceError):
    """A table lacks a column, holds a null key, repeats a key, or is not sorted by its key."""


class StoreMissing(BatchScienceError):
    """There are no tables where they were looked for."""


class UnknownWorkload(BatchScienceError):
    """The tables hold no workload of that name."""


class UnknownMetric(BatchScienceError, KeyError):
    """The workload has no metric of that name."""

    __str__ = Exception.__str__  # a KeyError would print its message in quotes


class SourceConflict(BatchScienceError):
    """A study to be ingested is already in the tables, from another source."""


class FetchError(BatchScienceError):
    """The archive could not be downloaded, or is not the one expected."""


class TrainingError(BatchScienceError):
    """A study cannot be trained as asked: device, data set, batch size or settings."""
