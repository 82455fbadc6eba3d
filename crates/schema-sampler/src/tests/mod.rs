//! Tests of whole constraints; the `.jsonl` files are tables of schemas.

mod random;
mod tables;
mod tags;
mod work;
