//! Continuous batching as SGLang does it.
