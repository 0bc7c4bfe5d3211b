import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.common.component.LifecycleComponentStack;
import org.apache.bookkeeper.conf.AbstractConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;

/** Bookies and auto-recovery of the peer inside this process, known by a name the test gives. */
final class PeerServers {
    private final Map<String, LifecycleComponentStack> bookies = new ConcurrentHashMap<>();
    private final Map<String, AutoRecoveryMain> recoveries = new ConcurrentHashMap<>();

    boolean run(String op, JsonNode request, ObjectNode result) throws Exception {
        switch (op) {
            case "init_cluster": BookKeeperAdmin.initNewCluster(conf(request)); return true;
            case "start_bookie": startBookie(request); return true;
            case "stop_bookie": stopBookie(request); return true;
            case "start_recovery": startRecovery(request); return true;
            case "stop_recovery": recoveries.remove(name(request)).shutdown(); return true;
            default: return false;
        }
    }

    /** Sets options by the keys of the peer's configuration files. */
    static void set(AbstractConfiguration<?> conf, JsonNode options) {
        options.fields().forEachRemaining(option ->
                conf.setProperty(option.getKey(), option.getValue().asText()));
    }

    private static String name(JsonNode request) {
        return request.get("name").asText();
    }

    private static ServerConfiguration conf(JsonNode request) {
        ServerConfiguration conf = new ServerConfiguration();
        set(conf, request.get("conf"));
        return conf;
    }

    private void startBookie(JsonNode request) throws Exception {
        LifecycleComponentStack stack = EmbeddedServer
                .builder(new BookieConfiguration(conf(request))).build()
                .getLifecycleComponentStack();
        stack.start();
        bookies.put(name(request), stack);
    }

    private void stopBookie(JsonNode request) {
        LifecycleComponentStack stack = bookies.remove(name(request));
        stack.stop();
        stack.close();
    }

    private void startRecovery(JsonNode request) throws Exception {
        AutoRecoveryMain recovery = new AutoRecoveryMain(conf(request));
        recovery.start();
        recoveries.put(name(request), recovery);
    }
}
