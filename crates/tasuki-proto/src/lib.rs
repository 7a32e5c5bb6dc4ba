//! gRPC messages between nodes, generated from `proto/`. The crate contains nothing else, so that it is rarely rebuilt.
//! `tasuki-cluster` validates the messages and acts on them.

use std::fmt;

/// Version 1 of the messages, the only version.
#[allow(missing_docs, clippy::all, unused_qualifications)] // generated code
pub mod v1 {
    tonic::include_proto!("tasuki.v1");
}

/// Encoded file descriptors of the messages, for gRPC server reflection.
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

impl fmt::Debug for v1::LeasedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedRun").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_contains_no_lease_token() {
        let token = vec![0xAB; 16];
        let request = v1::StartJobRequest { lease_token: token.clone(), ..Default::default() };
        let leased = v1::LeasedRun { run_id: 7, lease_token: token };
        let printed = format!("{request:?} {leased:?}");
        assert!(
            !printed.contains("171") && !printed.to_lowercase().contains("ab, ab"),
            "{printed}"
        );
    }
}
