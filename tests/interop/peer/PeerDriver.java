import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.client.api.BKException;

/**
 * The peer, driven by tests: one JSON object a line comes in on standard input, one goes out.
 *
 * <p>A request is {"id": 7, "op": "create", ...}; its answer is {"id": 7, "ok": {...}} or
 * {"id": 7, "error": {"code": -101, "type": "BKLedgerFencedException", "message": "..."}}, where
 * code is the peer's own or null. Requests run at the same time, so answers come in any order.
 * The process ends when its input does. Clients and ledgers are in {@link PeerLedgers}, bookies
 * and auto-recovery in {@link PeerServers}, placement in {@link PeerPlacement}, streams in
 * {@link PeerStreams}.
 */
public class PeerDriver {
    static final ObjectMapper JSON = new ObjectMapper();

    private final PrintStream out;
    private final PeerLedgers ledgers = new PeerLedgers();
    private final PeerServers servers = new PeerServers();
    private final PeerPlacement placement = new PeerPlacement();
    private final PeerStreams streams = new PeerStreams();

    private PeerDriver(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] words) throws Exception {
        PeerDriver driver = new PeerDriver(System.out);
        System.setOut(System.err); // what the peer prints must not mix with answers
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            threads.execute(() -> driver.answer(request));
        }
        Runtime.getRuntime().halt(0);
    }

    private void answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("id", request.get("id"));
        try {
            ObjectNode result = JSON.createObjectNode();
            String op = request.get("op").asText();
            if (!ledgers.run(op, request, result) && !servers.run(op, request, result)
                    && !placement.run(op, request, result)
                    && !streams.run(op, request, result)) {
                throw new IllegalArgumentException("unknown operation " + op);
            }
            answer.set("ok", result);
        } catch (Throwable thrown) {
            Throwable cause = thrown;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            if (!(cause instanceof BKException)) {
                cause.printStackTrace();
            }
            ObjectNode error = answer.putObject("error");
            error.set("code", null);
            if (cause instanceof BKException) {
                error.put("code", ((BKException) cause).getCode());
            }
            error.put("type", cause.getClass().getSimpleName());
            error.put("message", String.valueOf(cause.getMessage()));
        }
        synchronized (out) {
            out.println(answer);
            out.flush();
        }
    }
}
