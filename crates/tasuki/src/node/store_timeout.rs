//! Time limit for store calls, so that a database that does not respond cannot block a loop forever.

use std::time::Duration;

use tasuki_store::Error;

/// Time limit of one store call: longer than any of our writes takes, and shorter than half a lease.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a store call; returns a timeout error if it takes longer than [`STORE_TIMEOUT`].
pub(crate) async fn with_timeout<T>(
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(STORE_TIMEOUT, call).await.unwrap_or_else(|_| Err(Error::timeout()))
}
