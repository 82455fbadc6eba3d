#![doc = include_str!("../README.md")]

mod grid;
pub mod plan;
mod shard;
pub mod sweep;
mod trend;
