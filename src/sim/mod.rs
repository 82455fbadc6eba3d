//! Time and chance as values: the clock the engine is handed, and random streams
//! that depend on nothing but (seed, request, purpose).

mod agenda;
pub mod duration;
mod random;
pub mod std_rng;
mod time;

pub use agenda::Agenda;
pub use random::{Draw, Purpose, mix, stream};
pub use time::SimTime;
