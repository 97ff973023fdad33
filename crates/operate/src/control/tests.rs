//! Locks and sockets of processes that live, end and are killed.

use super::*;

fn name() -> SubscriptionName {
    "s".parse().unwrap()
}

fn serve(dir: &Path) -> (Server, Arc<Status>, CancellationToken) {
    let status = Arc::new(Status::new(name()));
    let stop = CancellationToken::new();
    let lock = Lock::acquire(dir, &name()).unwrap();
    let server = Server::start(lock, Arc::clone(&status), stop.clone()).unwrap();
    (server, status, stop)
}

#[test]
fn a_second_holder_is_refused_with_the_pid_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let lock = Lock::acquire(dir.path(), &name()).unwrap();
    let error = Lock::acquire(dir.path(), &name()).unwrap_err();
    assert!(error.is_in_use());
    let text = error.to_string();
    assert!(text.contains(&format!("process {}", std::process::id())) && text.contains("\"s\""), "{text}");
    drop(lock);
    Lock::acquire(dir.path(), &name()).unwrap().remove().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn other_names_are_other_locks() {
    let dir = tempfile::tempdir().unwrap();
    let _one = Lock::acquire(dir.path(), &name()).unwrap();
    let _other = Lock::acquire(dir.path(), &"t".parse().unwrap()).unwrap();
}

#[tokio::test]
async fn every_request_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, status, stop) = serve(dir.path());
    let answer = ask(dir.path(), &name(), &Request::Status).await.unwrap();
    assert_eq!(answer.pid, std::process::id());
    assert_eq!(answer.status.unwrap().phase, "starting");

    let mut skips = status.skip_lsn();
    ask(dir.path(), &name(), &Request::Skip { lsn: "16/B374D848".to_owned() }).await.unwrap();
    assert!(skips.has_changed().unwrap());
    assert_eq!(*skips.borrow_and_update(), "16/B374D848".parse().unwrap());
    ask(dir.path(), &name(), &Request::ReloadSkip).await.unwrap();
    assert!(skips.has_changed().unwrap());

    assert!(!stop.is_cancelled());
    ask(dir.path(), &name(), &Request::Stop).await.unwrap();
    assert!(stop.is_cancelled());
}

#[tokio::test]
async fn nonsense_is_refused_and_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _status, stop) = serve(dir.path());
    let error = ask(dir.path(), &name(), &Request::Skip { lsn: "x".to_owned() }).await.unwrap_err();
    assert!(error.to_string().contains("not an LSN"), "{error}");
    for line in ["\n".to_owned(), "{\"command\":\"explode\"}\n".to_owned(), "x".repeat(100_000)] {
        let mut stream = UnixStream::connect(socket_path(dir.path(), &name())).await.unwrap();
        // The other end may close before all of a long line is written.
        let _ = stream.write_all(line.as_bytes()).await;
        let _ = stream.shutdown().await;
        let mut text = String::new();
        if BufReader::new(stream).read_line(&mut text).await.is_ok() {
            assert!(text.contains("\"ok\":false"), "{text}");
        }
    }
    assert!(!stop.is_cancelled());
    assert!(ask(dir.path(), &name(), &Request::Status).await.unwrap().ok);
}

/// As `nc -N` asks.
#[tokio::test]
async fn a_caller_that_closes_its_half_behind_a_request_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, ..) = serve(dir.path());
    for _ in 0..40 {
        let mut stream = UnixStream::connect(socket_path(dir.path(), &name())).await.unwrap();
        stream.write_all(b"{\"command\":\"status\"}\n").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut text = String::new();
        BufReader::new(stream).read_line(&mut text).await.unwrap();
        assert!(text.contains("\"ok\":true"), "{text}");
    }
}

#[tokio::test]
async fn socket_is_private_and_goes_with_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let (server, ..) = serve(&state);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket_path(&state, &name())), 0o600);
    assert_eq!(mode(&state), 0o700);
    assert!(!wait_until_free(&state, &name(), Duration::ZERO).await.unwrap());
    drop(server);
    assert!(ask(&state, &name(), &Request::Status).await.unwrap_err().is_not_running());
    assert!(wait_until_free(&state, &name(), Duration::ZERO).await.unwrap());
}

#[tokio::test]
async fn socket_of_a_killed_process_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    // A kill -9 leaves a socket without a listener, and an unlocked file.
    drop(std::os::unix::net::UnixListener::bind(socket_path(dir.path(), &name())).unwrap());
    std::fs::write(lock_path(dir.path(), &name()), "4194304\n").unwrap();
    assert!(ask(dir.path(), &name(), &Request::Status).await.unwrap_err().is_not_running());
    let (_server, ..) = serve(dir.path());
    assert!(ask(dir.path(), &name(), &Request::Status).await.unwrap().ok);
}

#[tokio::test]
async fn a_path_too_long_for_a_socket_names_the_setting() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("x".repeat(120));
    let lock = Lock::acquire(&state, &name()).unwrap();
    let error = Server::start(lock, Arc::new(Status::new(name())), CancellationToken::new()).unwrap_err();
    assert!(error.to_string().contains("state_dir"), "{error}");
}

#[tokio::test]
async fn a_stream_that_does_not_flow_cannot_be_held() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _status, _stop) = serve(dir.path());
    let mut conversation = Conversation::open(dir.path(), &name()).await.unwrap();
    let refused = conversation.ask(&Request::Hold).await.unwrap_err();
    assert!(refused.is_refused() && refused.to_string().contains("does not stream"), "{refused}");
    let advance = |snapshot: &str| Request::Advance { snapshot: snapshot.to_owned(), lsn: "0/1".to_owned() };
    // Each is refused, and the conversation goes on.
    for (request, why) in [(advance("7:9:7"), "not held"), (advance("nonsense"), "xmin:xmax")] {
        let refused = conversation.ask(&request).await.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert!(conversation.ask(&Request::Release).await.unwrap().ok);
}
