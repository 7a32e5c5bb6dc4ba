//! A web service: an order and the mail about it are one transaction, so there is never one without the other.
//!
//! `cargo run -p tasuki --example shop`, then `curl -d tea http://127.0.0.1:3000/orders`; an order of `nothing` is
//! refused after its mail was submitted, and neither is there.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use tasuki::{Client, Context, TaskError};
use tasuki_core::RunId;
use tokio::net::TcpListener;

#[derive(Serialize, Deserialize)]
struct Mail {
    order: i64,
    text: String,
}

async fn send_mail(mail: Mail, context: Context) -> Result<(), TaskError> {
    // Who really sends mail would hand the key on, so that a second try sends no second mail.
    let key = context.idempotency_key();
    context.log(format!("mail for order {}: {} ({key})", mail.order, mail.text));
    Ok(())
}

#[derive(Clone)]
struct Shop {
    client: Client,
    pool: SqlitePool,
}

type Failed = (StatusCode, String);

fn failed(error: impl std::fmt::Display) -> Failed {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

async fn order(State(shop): State<Shop>, what: String) -> Result<String, Failed> {
    let mut transaction = shop.pool.begin_with("begin immediate").await.map_err(failed)?;
    let made = sqlx::query("insert into purchase (what) values (?)").bind(&what);
    let order = made.execute(&mut *transaction).await.map_err(failed)?.last_insert_rowid();
    let mail = Mail { order, text: format!("thank you for ordering {what}") };
    let task = shop.client.task("send_mail", &mail).map_err(failed)?;
    let run = task.submit_in(&mut transaction).await.map_err(failed)?.run;
    if what == "nothing" {
        // Dropped, the transaction takes the mail with it.
        return Err((StatusCode::UNPROCESSABLE_ENTITY, "there is nothing to sell".to_owned()));
    }
    transaction.commit().await.map_err(failed)?;
    shop.client.committed();
    Ok(format!("{run}"))
}

async fn mail(State(shop): State<Shop>, Path(run): Path<i64>) -> Result<String, Failed> {
    let waited = shop.client.wait(RunId(run), Duration::from_secs(10)).await.map_err(failed)?;
    Ok(waited.now.run.state.to_string())
}

/// Serves until `stop` comes.
pub(crate) async fn run(
    database: &str,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect(database).await?;
    let pool = SqlitePool::connect(database).await?;
    sqlx::raw_sql(
        "create table if not exists purchase (id integer primary key, what text not null)",
    )
    .execute(&pool)
    .await?;
    let node = client.node("shop")?.handler("send_mail", send_mail).start().await?;
    let shop = Router::new()
        .route("/orders", post(order))
        .route("/mails/{run}", get(mail))
        .with_state(Shop { client, pool });
    axum::serve(listener, shop).with_graceful_shutdown(stop).await?;
    node.stop().await;
    Ok(())
}

#[allow(dead_code, reason = "the tests call run")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}", listener.local_addr()?);
    run("sqlite:shop.db", listener, async { drop(tokio::signal::ctrl_c().await) }).await
}
