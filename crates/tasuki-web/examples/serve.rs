//! Serves only the API, on a free port, with its own SQLite database: for tools that test it from
//! outside. Prints its address and a token, and serves until its standard input ends.
//!
//! `cargo run -p tasuki-web --example serve -- DIRECTORY`

use std::error::Error;
use std::path::PathBuf;

use tasuki::operator::{AccessRole, Actor};
use tasuki::{Operator, Wakeups};
use tasuki_store::Store;
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory: PathBuf = std::env::args_os().nth(1).ok_or("usage: serve DIRECTORY")?.into();
    let store = Store::open(&format!("sqlite:{}", directory.join("serve.db").display()), 4).await?;
    store.migrate().await?;
    let operator = Operator::new(store, Wakeups::default());
    let actor = Actor { name: "example".to_owned(), address: None, role: AccessRole::Admin };
    let issued = operator.create_token(&actor, "example", AccessRole::Admin, None).await?;

    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("url=http://{}", listener.local_addr()?);
    println!("token={}", issued.secret);
    let stopped = async {
        // Standard input is read in a separate thread; the process that started this one closes it.
        let _ = tokio::task::spawn_blocking(|| {
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())
        })
        .await;
    };
    tasuki_web::serve(listener, tasuki_web::router(operator), stopped).await?;
    Ok(())
}
