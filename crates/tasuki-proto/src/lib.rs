//! What nodes say to each other, as messages: generated from `proto/`, and nothing else, so that it is
//! rarely built. What they mean, and how they are checked, is in `tasuki-cluster`.

use std::fmt;

/// The first version, and the only one.
#[allow(missing_docs, clippy::all, unused_qualifications)] // written by a generator
pub mod v1 {
    tonic::include_proto!("tasuki.v1");
}

/// The messages described in their own words, for whoever asks a node what it understands.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

impl fmt::Debug for v1::StartJobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartJobRequest")
            .field("worker_id", &self.worker_id)
            .field("leader_epoch", &self.leader_epoch)
            .field("runs", &self.runs)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for v1::CarriedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CarriedRun").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_token_is_never_printed() {
        let token = vec![0xAB; 16];
        let order = v1::StartJobRequest { lease_token: token.clone(), ..Default::default() };
        let carried = v1::CarriedRun { run_id: 7, lease_token: token };
        let printed = format!("{order:?} {carried:?}");
        assert!(
            !printed.contains("171") && !printed.to_lowercase().contains("ab, ab"),
            "{printed}"
        );
    }
}
