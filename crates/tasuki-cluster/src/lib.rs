//! Many nodes as one: where they meet beside the database (Redis), and how they call each other (gRPC with mTLS).
//!
//! Nothing here decides. What is read here makes somebody look at the database sooner, and what the database
//! then says is what happens; so all of it may be lost, late, doubled or empty.

mod files;
pub mod identity;
pub mod redis;
pub mod rpc;
pub mod security;
pub mod tls;
pub mod token;

pub use files::LOOK_EVERY;
pub use identity::{Identity, PeerRole};
pub use security::Security;
