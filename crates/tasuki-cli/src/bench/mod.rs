//! `tasuki bench`: performance measurements. Most benchmarks also measure a baseline (bare SQL or bare processes) in the
//! same run, so that the ratio does not depend on the machine.

mod baseline;
mod drain;
mod enqueue;
mod fire;
mod fixture;
mod growth;
mod latency;
mod progress;
mod results;
mod spawn;
mod store;

pub(crate) use drain::BenchDrain;
pub(crate) use enqueue::BenchEnqueue;
pub(crate) use fire::BenchFire;
pub(crate) use growth::BenchGrowth;
pub(crate) use latency::BenchLatency;
pub(crate) use spawn::BenchSpawn;
pub(crate) use store::BenchStore;
