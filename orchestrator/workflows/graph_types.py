"""The types of the `codegen` graph, for all who build, hold or drive one."""

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph

from orchestrator.workflows.context import CodegenContext
from orchestrator.workflows.state import CodegenState

Graph = CompiledStateGraph[CodegenState, CodegenContext, CodegenState, CodegenState]
Builder = StateGraph[CodegenState, CodegenContext, CodegenState, CodegenState]
