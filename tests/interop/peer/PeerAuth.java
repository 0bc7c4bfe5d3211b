import java.nio.charset.StandardCharsets;
import org.apache.bookkeeper.auth.AuthCallbacks.GenericCallback;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.BookieAuthProvider;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.proto.BookieConnectionPeer;
import org.apache.bookkeeper.proto.ClientConnectionPeer;

/** A plug-in of two rounds, hello/challenge and response/ok, as the peer's users write one. */
public final class PeerAuth {
    static final String NAME = "GoldenAuth";

    private PeerAuth() {}

    static AuthToken token(String text) {
        return AuthToken.wrap(text.getBytes(StandardCharsets.UTF_8));
    }

    static String text(AuthToken token) {
        return new String(token.getData(), StandardCharsets.UTF_8);
    }

    /** The client's side; over TLS it begins behind the handshake. */
    public static final class Client implements ClientAuthProvider.Factory {
        private boolean overTls;

        @Override
        public void init(ClientConfiguration conf) {
            overTls = conf.getTLSProviderFactoryClass() != null;
        }

        @Override
        public String getPluginName() {
            return NAME;
        }

        @Override
        public ClientAuthProvider newProvider(
                ClientConnectionPeer peer, GenericCallback<Void> complete) {
            return new ClientAuthProvider() {
                private GenericCallback<AuthToken> first;

                @Override
                public void init(GenericCallback<AuthToken> callback) {
                    first = callback;
                    if (!overTls) {
                        onProtocolUpgrade();
                    }
                }

                @Override
                public void onProtocolUpgrade() {
                    first.operationComplete(BKException.Code.OK, token("hello"));
                }

                @Override
                public void process(AuthToken message, GenericCallback<AuthToken> callback) {
                    if (text(message).equals("challenge")) {
                        callback.operationComplete(BKException.Code.OK, token("response"));
                    } else {
                        complete.operationComplete(BKException.Code.OK, null);
                    }
                }
            };
        }
    }

    /** The bookie's side. */
    public static final class Bookie implements BookieAuthProvider.Factory {
        @Override
        public void init(ServerConfiguration conf) {}

        @Override
        public String getPluginName() {
            return NAME;
        }

        @Override
        public BookieAuthProvider newProvider(
                BookieConnectionPeer peer, GenericCallback<Void> complete) {
            return (message, callback) -> {
                if (text(message).equals("hello")) {
                    callback.operationComplete(BKException.Code.OK, token("challenge"));
                } else if (text(message).equals("response")) {
                    complete.operationComplete(BKException.Code.OK, null);
                    callback.operationComplete(BKException.Code.OK, token("ok"));
                } else {
                    callback.operationComplete(
                            BKException.Code.UnauthorizedAccessException, null);
                }
            };
        }
    }
}
