//! `tasuki bench`: performance measurements. Most benchmarks also measure a baseline (bare SQL or bare processes) in the
//! same run, so that the ratio does not depend on the machine.

mod baseline;
mod command_rate;
mod drain;
mod enqueue;
mod fire_delay;
mod fixture;
mod growth;
mod progress;
mod results;
mod store;
mod submit_to_start_latency;

pub(crate) use command_rate::BenchSpawnCommand;
pub(crate) use drain::BenchDrainCommand;
pub(crate) use enqueue::BenchEnqueueCommand;
pub(crate) use fire_delay::BenchFireCommand;
pub(crate) use growth::BenchGrowthCommand;
pub(crate) use store::BenchStoreCommand;
pub(crate) use submit_to_start_latency::BenchLatencyCommand;
