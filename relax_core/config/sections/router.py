"""Options of the router between the rollout and its engines.

Guarantee: none of them changes what is trained. Importing this module needs pydantic only.
"""

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT, above


class RouterSection(Section):
    """Router"""

    title_zh = "Router 配置"

    use_slime_router: bool = option(
        False, unwired="warn", zh="请求改走按文本分发的 SlimeRouter，而不是 SGLang 按 token 分发的 router。"
    )
    """Send requests through SlimeRouter, which goes by text, in place of SGLang's router, which goes by tokens."""
    slime_router_middleware_paths: list[str] = option(
        [], unwired="warn", zh="router 依次加载的中间件：`包.模块.名称`。需要 --use-slime-router。"
    )
    """Middleware of the router in its order, each as `package.module.name`. Needs --use-slime-router."""
    slime_router_timeout: float | None = option(
        None, above(0), unwired="warn", zh="router 等引擎答复多少秒。需要 --use-slime-router。默认：一直等。"
    )
    """Seconds that the router waits for an engine's answer. Needs --use-slime-router. Default: no limit."""
    slime_router_max_connections: int | None = option(
        None,
        COUNT,
        unwired="warn",
        zh="router 同时打开的连接数上限。需要 --use-slime-router。默认：--sglang-server-concurrency 乘以引擎数。",
    )
    """Most connections that the router opens. Needs --use-slime-router. Default: --sglang-server-concurrency times the
    number of engines."""
    slime_router_health_check_failure_threshold: int = option(
        3, COUNT, unwired="warn", zh="检查接连失败几次，引擎就不再收到请求。需要 --use-slime-router。"
    )
    """Failed health checks in a row after which an engine gets no more requests. Needs --use-slime-router."""
    slime_router_sticky: bool = option(
        False,
        unwired="warn",
        zh="请求头 X-SMG-Routing-Key 相同的请求总去同一个引擎，以用上那里的前缀缓存；引擎离开后才改派。"
        "需要 --use-slime-router。",
    )
    """Requests with the same header X-SMG-Routing-Key go to the same engine, for its prefix cache, until that engine
    leaves. Needs --use-slime-router."""
    slime_router_sticky_idle_secs: float = option(
        600.0,
        above(0),
        unwired="warn",
        zh="一个 key 多少秒没有新请求，就忘掉它去哪个引擎。需要 --slime-router-sticky。",
    )
    """Seconds without a request after which a key's engine is forgotten. Needs --slime-router-sticky."""
