//! How fast it is here: each figure beside the limit that was measured in the same run.

mod bar;
mod bare;
mod drain;
mod enqueue;
mod figures;
mod fire;
mod growth;
mod latency;
mod place;
mod spawn;
mod store;

pub(crate) use drain::BenchDrain;
pub(crate) use enqueue::BenchEnqueue;
pub(crate) use fire::BenchFire;
pub(crate) use growth::BenchGrowth;
pub(crate) use latency::BenchLatency;
pub(crate) use spawn::BenchSpawn;
pub(crate) use store::BenchStore;
