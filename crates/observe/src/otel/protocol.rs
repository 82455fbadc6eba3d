/// How spans are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OtlpProtocol {
    /// gRPC to a host and port. Any scheme or none will do; only `https` means something: TLS.
    #[default]
    Grpc,
    /// Protobuf in a POST to a whole URL, whose path is usually `/v1/traces`.
    HttpProtobuf,
}
