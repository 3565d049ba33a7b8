"""What holds for every test."""

from hypothesis import settings

# A busy machine is no fault of the code; the number of examples bounds the time.
settings.register_profile("batchscience", deadline=None, max_examples=60)
settings.load_profile("batchscience")
