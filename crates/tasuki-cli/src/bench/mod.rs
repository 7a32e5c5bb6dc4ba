//! How fast it is here.

mod fire;
mod store;

pub(crate) use fire::BenchFire;
pub(crate) use store::BenchStore;
