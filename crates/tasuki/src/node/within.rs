//! Everything has a bound, also the patience with a database that does not answer.

use std::time::Duration;

use tasuki_store::Error;

/// Longer than any write of ours takes, shorter than half a lease.
const LIMIT: Duration = Duration::from_secs(5);

/// The answer, or that none came in time.
pub(crate) async fn within<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(LIMIT, asked).await.unwrap_or_else(|_| Err(Error::timed_out()))
}
