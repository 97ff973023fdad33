//! What clients of PostgreSQL really send. Shared with the fuzz targets' corpus, which `cargo x
//! fuzz` writes.

/// First packets: of subscribers and psql, requests for encryption, and cancel requests.
pub(crate) fn startup() -> Vec<Vec<u8>> {
    let packet = |code: u32, body: &[u8]| {
        let length = u32::try_from(body.len() + 8).expect("a short packet");
        [&length.to_be_bytes()[..], &code.to_be_bytes(), body].concat()
    };
    let version = |minor: u32, body: &[u8]| packet((3 << 16) | minor, body);
    vec![
        packet(80_877_103, b""),
        packet(80_877_104, b""),
        packet(80_877_102, b"\0\0\0\x07\0\0\0\x09"),
        packet(80_877_102, &[&[0, 0, 0, 7][..], &[9; 32]].concat()),
        version(0, b"user\0sub\0database\0shop\0replication\0database\0options\0 -c datestyle=ISO -c intervalstyle=postgres\0application_name\0s\0client_encoding\0UTF8\0\0"),
        version(0, b"user\0sub\0replication\0true\0application_name\0walreceiver\0\0"),
        version(2, b"user\0a\0database\0\0_pq_.command_tag\0on\0\0"),
        version(9, b"user\0a\0\0"),
    ]
}

/// Commands of subscribers of 14 to 18, of `pg_recvlogical` and `pg_receivewal`.
pub(crate) fn commands() -> Vec<Vec<u8>> {
    [
        "IDENTIFY_SYSTEM",
        "SHOW data_directory_mode;",
        "READ_REPLICATION_SLOT \"s\"",
        "TIMELINE_HISTORY 2",
        "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (FAILOVER, TWO_PHASE false, SNAPSHOT 'nothing')",
        "CREATE_REPLICATION_SLOT \"pg_16_sync_17\" TEMPORARY LOGICAL pgoutput USE_SNAPSHOT",
        "CREATE_REPLICATION_SLOT \"p\" PHYSICAL RESERVE_WAL",
        "DROP_REPLICATION_SLOT pg_16_sync_17 WAIT",
        "ALTER_REPLICATION_SLOT s ( FAILOVER true, TWO_PHASE 0 );",
        "START_REPLICATION SLOT \"s\" LOGICAL 16/B374D848 (proto_version '4', streaming 'parallel', origin 'any', \
         publication_names '\"p1\",\"it''s\"', binary 'true')",
        "START_REPLICATION SLOT \"p\" PHYSICAL 0/3000000 TIMELINE 1",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// A byte that chooses the channel, and two messages behind one another. `%` stands for the nonce
/// of both sides, which nobody knows before.
pub(crate) fn scram() -> Vec<Vec<u8>> {
    let proof = "p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    [
        (0, "n,,n=,r=rOprNGfwEbeRWgbNEkqO", "c=biws,r=%"),
        (1, "y,,n=*,r=abc", "c=eSws,r=%"),
        (2, "p=tls-server-end-point,,n=,r=abc", "c=cD10bHMtc2VydmVyLWVuZC1wb2ludCwsY2VydA==,r=%"),
        (0, "n,,n=,r=abc,x=extension", "c=biws,r=%,x=extension"),
    ]
    .map(|(channel, first, last)| format!("{}{first}\n{last},{proof}", char::from(channel)).into_bytes())
    .to_vec()
}
