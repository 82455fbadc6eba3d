//! Tests of constraints as a whole; the tables of schemas are beside this file.

mod random;
mod tables;
mod tags;
mod work;
